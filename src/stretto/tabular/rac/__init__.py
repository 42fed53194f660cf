"""Decision processes with rewards that come late, and retroactive correction (RAC, arXiv 2606.27580)."""
