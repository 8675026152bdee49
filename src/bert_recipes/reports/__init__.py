"""What a person looks at: report and model card of a run, of a sweep, and of several runs side by
side.
"""
