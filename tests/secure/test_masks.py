"""The masks against published vectors and against another implementation, and what they look like from outside."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2

from coterie.secure.masks import add_pairs, agreed, canonical, checksum, derived, expanded, public_half


@pytest.mark.parametrize(
    ("key", "block", "stream"),
    [  # RFC 8439, appendix A.1, vectors 1 to 3
        (
            bytes(32),
            0,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (
            bytes(32),
            1,
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
        (
            bytes(31) + b"\x01",
            1,
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        ),
    ],
)
def test_a_seed_becomes_the_stream_of_chacha20(key: bytes, block: int, stream: str) -> None:
    wanted = np.frombuffer(bytes.fromhex(stream), "<u8")
    for count in range(9):
        np.testing.assert_array_equal(expanded(key, 8 * block + count)[8 * block :], wanted[:count])


def test_a_seed_is_derived_as_rfc_5869_says() -> None:
    """HKDF once more, with the standard library."""
    secret, context, purpose = bytes(range(32)), "context", ("own", 3)
    info = b"coterie secure sums 1" + b'["own",3]'
    prk = hmac.new(context.encode(), secret, hashlib.sha256).digest()
    assert derived(secret, context, *purpose) == hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


def test_a_mask_is_the_same_in_all_later_versions() -> None:
    """A change of these numbers needs another VERSION: sites of two versions would add up noise."""
    one = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    two = X25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
    bound = checksum(["run", 1, [0, 1], "about"])
    assert bound == "54c7de475fe7819b5f13bd707a9938c083aec4427b56b3470450e00af8940975"
    total = np.zeros(3, np.uint64)
    add_pairs(total, one, 0, {1: public_half(two)}, bound)
    assert total.tolist() == [1663632357941280640, 13933773785057914672, 5738178955549405506]


def test_two_members_agree_and_their_masks_cancel() -> None:
    keys = [X25519PrivateKey.generate() for _ in range(4)]
    shown = {i: public_half(key) for i, key in enumerate(keys)}
    assert agreed(keys[0], shown[1]) == agreed(keys[1], shown[0])
    total = np.zeros(50, np.uint64)
    for i, key in enumerate(keys):
        before = total.copy()
        add_pairs(total, key, i, {j: k for j, k in shown.items() if j != i}, "bound")
        assert (total != before).all()
    assert not total.any()


def test_every_purpose_and_context_has_its_own_seed() -> None:
    made = [
        derived(bytes(32), c, *p) for c in ("", "a", "b") for p in ((), ("own",), ("own", 1), ("own", "1"), ("own1",))
    ]
    assert len(set(made)) == len(made)


def test_plain_values_have_one_text() -> None:
    assert canonical({"b": 1, "a": [True, None, "ä"]}) == b'{"a":[true,null,"\\u00e4"],"b":1}'


def chi_square(values: np.ndarray) -> float:
    """The probability of counts of bytes as uneven as these, if all bytes are equally likely."""
    counts = np.bincount(values, minlength=256)
    expected = len(values) / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255))


def test_the_stream_is_uniform() -> None:
    """Over 10⁵ draws and each of their eight bytes; and a biased stream is noticed."""
    stream = expanded(hashlib.sha256(b"one").digest(), 100_000)
    for place in range(8):
        assert chi_square((stream >> np.uint64(8 * place)).astype(np.uint8)) > 1e-4
    assert chi_square((stream % np.uint64(255)).astype(np.uint8)) < 1e-4
