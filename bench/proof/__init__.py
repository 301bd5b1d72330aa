"""All benchmarks in one go, and the page that is made from them."""
