"""What a person looks at: report.md and report.html of a run, of a sweep, and of several runs beside each other."""
