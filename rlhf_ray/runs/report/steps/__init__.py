"""The steps of the run report, one file each: functions of a `rlhf_ray.runs.report.subject.Run` that return a section."""
