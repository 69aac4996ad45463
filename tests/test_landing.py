"""How commits land: numbers, reverts, relands. Messages are made up; test_public_histories.py has real ones."""

from __future__ import annotations

import pytest

from rtb.landing import Landing, Reverts, read_landing

REPO = "pytorch/ao"
URL = "https://github.com"


def landing(message: str, parents: int = 1, repo: str = REPO) -> Landing:
    return read_landing(message, parents, repo, ("pytorch-labs/ao",))


NUMBERS = {
    "squash": ("Add it (#12)\n\nbody (#99)", 12, "squash"),
    "no blank before": ("Add it(#12)", 12, "squash"),
    "full-width brackets": ("Add it（#12）", 12, "squash"),
    "last one wins": ("Add it (#318) (#346)", 346, "squash"),
    "words in brackets do not count": ("Add it (RFC #29630, 7/7) (#30795)", 30795, "squash"),
    "trailer": (f"Add it\n\nPull Request resolved: {URL}/pytorch/ao/pull/1250", 1250, "trailer"),
    "trailer outranks a foreign number": (
        f"Add it (#11363)\n\nPull Request resolved: {URL}/pytorch/ao/pull/2302",
        2302,
        "trailer",
    ),
    "trailer of this repository": (
        f"Add it (#71224)\n\nPull Request resolved: {URL}/pytorch/pytorch/pull/71224\n\n"
        f"Pull Request resolved: {URL}/pytorch/ao/pull/860",
        860,
        "trailer",
    ),
    "trailer of its earlier owner": (
        f"Add it\n\nPull Request resolved: {URL}/pytorch-labs/ao/pull/52",
        52,
        "trailer",
    ),
    "two trailers, one in the subject": (
        f"Add it (#5960)\n\nPull Request resolved: {URL}/pytorch/ao/pull/5937\n\n"
        f"Pull Request resolved: {URL}/pytorch/ao/pull/5960",
        5960,
        "trailer",
    ),
    "trailer over two lines": (f"Add it\n\nPull Request resolved:\n{URL}/pytorch/ao/pull/7", 7, "trailer"),
    "merge": ("Merge pull request #230 from someone/main\n\nAdd it", 230, "merge"),
}


@pytest.mark.parametrize(("message", "number", "style"), NUMBERS.values(), ids=NUMBERS.keys())
def test_the_number(message: str, number: int, style: str) -> None:
    found = landing(message, 2 if message.startswith("Merge") else 1)
    assert (found.number, found.style) == (number, style)


NO_NUMBERS = {
    "nothing": ("Update fp8.py", "no pull request"),
    "merge of a branch": (f"Merge branch 'main' of {URL}/a/b", "a merge of a branch"),
    "another repository's": (
        f"Add it (#88)\n\nPull Request resolved: {URL}/pytorch/torchrec/pull/88",
        "pytorch/torchrec",
    ),
    "an X-link": (f"Add it\n\nX-link: {URL}/facebookresearch/FBGEMM/pull/9", "X-link"),
    "an internal revision": ("Add it\n\nDifferential Revision:\nD79146382", "internal revision"),
    "a number in the middle": ("Fix #12 for good", "no pull request"),
}


@pytest.mark.parametrize(("message", "reason"), NO_NUMBERS.values(), ids=NO_NUMBERS.keys())
def test_no_number_has_a_reason(message: str, reason: str) -> None:
    found = landing(message, 2 if message.startswith("Merge") else 1)
    assert found.number is None and found.reason is not None and reason in found.reason


def test_a_merge_takes_its_title_from_the_body() -> None:
    assert landing("Merge pull request #7 from a/b\n\nAdd a kernel\n\nmore", 2).title == "Add a kernel"


REVERTS = {
    "quoted with a number": ('Revert "Add it (#15511)" (#15645)', ("number", "15511")),
    "quoted without": ('Revert "Add it" (#13707)', ("title", "add it")),
    "commit in the body": (
        'Revert "Add it" (#9)\n\nThis reverts commit 0123456789abcdef.',
        ("commit", "0123456789abcdef"),
    ),
    "back out": ('Back out "Add it" (#3505)', ("title", "add it")),
    "revision": ("Revert D79146382: Add it", ("revision", "D79146382")),
    "with a tag": ('[diffusion] Revert "Add it" (#27892)', ("title", "add it")),
    "quote cut off": ('Revert "Add it (#20762) (#21334)', ("number", "20762")),
    "merge of a revert": ('Merge pull request #9 from a/revert-8\n\nRevert "Add it"', ("title", "add it")),
}


@pytest.mark.parametrize(("message", "reference"), REVERTS.values(), ids=REVERTS.keys())
def test_what_a_revert_names(message: str, reference: tuple[str, str]) -> None:
    found = landing(message, 2 if message.startswith("Merge") else 1)
    assert found.is_revert and found.depth == 1
    assert reference in {(item.kind, item.value) for item in found.reverts}


NO_REVERTS = {
    "a tuning": "revert BLOCK and num_warps on HIP (#3722)",
    "configurations": "Revert expanded MoE FP8 autotune configs that regress shapes (#4024)",
    "names in backticks": "Revert `MptConfig` to `MPTConfig` (#1668)",
    "squashed steps": 'Add it (#5)\n\n* first\n\n* Revert "first"\n\nThis reverts commit 0123456789abcdef.',
}


@pytest.mark.parametrize("message", NO_REVERTS.values(), ids=NO_REVERTS.keys())
def test_the_word_alone_is_no_revert(message: str) -> None:
    assert not landing(message).is_revert


def reverted(*messages: str) -> set[str]:
    """Positions (as text) of what is reverted at the end."""
    reverts = Reverts()
    for position, message in enumerate(messages):
        reverts.add(str(position), landing(message))
    return set(reverts.state)


def test_a_revert_by_each_kind_of_reference() -> None:
    assert reverted("Add it (#1)", 'Revert "Add it (#1)" (#2)') == {"0"}
    assert reverted("Add it (#1)", 'Revert "Add it" (#2)') == {"0"}
    assert reverted(
        "Add it\n\nDifferential Revision: D12345678", "Revert D12345678\n\nDifferential Revision:\nD12345678"
    ) == {"0"}
    assert reverted("Other (#1)", 'Revert "Add it" (#2)') == set()


def test_a_reland_counts_and_what_it_lands_again_does_not() -> None:
    assert reverted("Add it (#1)", 'Revert "Add it (#1)" (#2)', "Reland Add it (#3)") == {"0"}
    assert landing("Reland Add it (#1) (#3)").reland and landing("Reland Add it (#1) (#3)").number == 3
    # Landed again under the very same title: the later one stands.
    assert reverted("Add it (#3493)", 'Back out "Add it" (#3505)', "Add it (#3508)") == {"0"}


def test_the_revert_of_a_revert_restores_the_original() -> None:
    again = 'Revert "Revert "Add it"" (#3)'
    assert reverted("Add it (#1)", 'Revert "Add it" (#2)', again) == {"1"}
    assert landing(again).depth == 2 and landing(again).is_revert


def test_a_title_cut_with_an_ellipsis_is_still_found() -> None:
    title = "Mamba2 Prefill Performance Tweaks: Fixing Flurry of Unnecessary Memory Copies"
    assert reverted(f"{title} (#1)", 'Revert "Mamba2 Prefill Performance Tweaks: Fixing Flurry of U… (#2)') == {"0"}


def test_cherry_picks_and_bundles() -> None:
    one = landing(
        "[Cherry-pick] Remove it (#7983) (#7192)\n\nPull Request resolved: https://github.com/pytorch/ao/pull/535"
    )
    assert one.cherry_pick and not one.bundle and one.number == 535
    assert landing("[Cherry-pick][BUNDLE] Cherry-pick 62 upstream(#1 #2 #3 #4) (#2511)").bundle
    assert landing("Upstream sync 2024 04 12 (#183)").bundle
    assert not landing("Synchronize threads before the store (#5)").bundle
