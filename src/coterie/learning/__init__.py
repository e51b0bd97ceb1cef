"""What one client learns with: task, networks, scores, and the local steps with their batched twin."""
