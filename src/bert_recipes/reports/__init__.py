"""Write the reports and model cards of runs, of sweeps, and of several runs side by side."""
