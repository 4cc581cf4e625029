"""The helper that tries tables of refusals must itself complain."""

from tests.refusals import complaints


def refuse(text):
    raise ValueError(text)


def test_calls_that_are_not_refused_as_they_should_be_are_told():
    assert complaints("size: must be", refuse, "size: must be > 0") == []
    assert complaints("size: must be", refuse, "but size: must be > 0") != []
    assert complaints("size: must be", refuse, text="name: must be a text") != []
    assert complaints("size: must be", str, "not refused") != []
