"""The loop's decisions as pure rules, one file each: (view, ...) -> answer. No clock, no I/O, no torch.

A *system* of the literature is a choice of rules: ``control.<hook>.name = "..."`` in the config, with the rule's
options beside it. ``hooks.py`` says what each hook is asked and lists the registries.
"""
