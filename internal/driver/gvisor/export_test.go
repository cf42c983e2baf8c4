package gvisor

// LimitOverhead sets what a machine may use of memory on top of its own limit.
func (d *Driver) LimitOverhead(bytes int64) { d.overheadBytes = bytes }

// CommandScore is the oom_score_adj of the processes that commands' are cloned from.
const CommandScore = commandScore
