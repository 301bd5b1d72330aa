"""The soak: for a bounded time everything happens to three machines and to what they depend on; then it is judged."""
