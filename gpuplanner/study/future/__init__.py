"""What could come: outlook, plans, the same jobs under every policy, and what that saves."""
