"""Studies of the decision rule: error rates where the answer is known, power, coverage, and real tables."""
