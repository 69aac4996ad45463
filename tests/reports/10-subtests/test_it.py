import unittest


class TestIt(unittest.TestCase):
    def test_it(self):
        for i in range(2):
            with self.subTest(i=i):
                self.assertEqual(i, 0)
