def check_it():
    assert False
