"""Artifacts: fetches the programs of a node from their publishers and builds complete directory trees from them.

A tree passes through the modules in this order: `model` (what is needed), `trust` (who knows its digests), `store`
(worker threads), `fetcher`
(bundle, cache or network), `download` (one file, resumed and verified), `cache`, `unpack` (safe extraction, on
`archive`), `tree_build` (the complete staged tree). `bundle` and `bundle_writer` do the same for machines without a
network.
"""
