"""rtb: can a language model write Triton kernels that hold up inside real AI frameworks?"""

__version__ = "0.1.0"
