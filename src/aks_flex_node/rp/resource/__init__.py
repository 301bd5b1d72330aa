"""The flexNodeConfig resource: what a person may write, what is wrong with it, and what becomes of it. All pure."""
