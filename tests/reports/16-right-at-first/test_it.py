import pytest

from lib import double


@pytest.mark.parametrize("n", range(1, 7))
def test_it(n):
    assert double(n) == 2 * n
