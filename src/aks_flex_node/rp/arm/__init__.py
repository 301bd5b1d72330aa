"""ARM's rules of speech: ids, envelopes, errors, versions of the API."""
