"""Sums that their server cannot take apart: every site hides its numbers behind masks that cancel in the sum of all.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017),
for few sites that stay for many sums. `site.py` is a site's side, `server.py` the server's; neither knows what is added up
or how messages travel. Ciphers and key agreement are those of the library `cryptography`. `docs/secure.md` says what the
masks hide, and from whom.

    keys      a site signs fresh public keys, one pair for each of the next sums          once for a set-up
    shares    it deals shares of its secrets to the others, and signs the list of members   once for a set-up
    (sum)     it answers the caller's question with masked numbers                          once for a sum
    open      it helps to remove the masks of those who answered, and of those who did not    once for a sum
"""
