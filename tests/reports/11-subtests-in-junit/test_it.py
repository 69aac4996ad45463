def test_it(subtests):
    for i in range(3):
        with subtests.test(i=i):
            assert i < 3
