"""Runs compiled networks as MegEngine's load_and_run does: timing, dumps, profiles, checks.

A library is run through its generated query functions alone; a model file is compiled first.
May import `compile` and all below it.

Exit status: 0 all is well; 1 a wrong option, input, model or library; 3 a tool of the machine
failed; 4 a mistake of ours; 5 a check found something (--range, --check_var_value, a test case,
threads that disagree, memory written that isn't the network's); 130 interrupted.
"""
