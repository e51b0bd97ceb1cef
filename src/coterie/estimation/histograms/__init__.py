"""One histogram per user: clustering in KL, fine-tuning, a soft mixture, baselines, files of counts."""
