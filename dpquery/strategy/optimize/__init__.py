"""The optimisers, by the names of the papers: OPT_0, OPT_x, OPT_+, OPT_M, OPT_F, OPT_R."""
