"""Sellers who set prices on their own clocks: the market, its continuous-time engine, learners, oracles, traces."""
