"""Webhook notifications: which events are sent to which receivers, signed, with retries."""
