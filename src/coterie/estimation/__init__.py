"""Personalised estimation: one estimate per client, strengthened by what the clients have in common."""
