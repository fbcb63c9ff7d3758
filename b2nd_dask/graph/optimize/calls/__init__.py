"""What fused tasks compute: calls, elementwise work, reductions."""
