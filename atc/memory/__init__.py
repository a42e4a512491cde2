"""Plan all buffers of a program into one arena, and prove the plan.

Takes a `Program`, returns an `Arena`; `check` and `audit` share no code with `planner`. May import
`program`, `ir` and `dims`.
"""
