"""What one client trains with: task, networks, metrics, and the local steps with their batched form."""
