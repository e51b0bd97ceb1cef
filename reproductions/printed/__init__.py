"""What the papers print and what fails: variants that only the experiments and their tests compare with."""
