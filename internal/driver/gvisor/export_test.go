package gvisor

// LimitOverhead sets what a machine may use of memory on top of its own limit.
func (d *Driver) LimitOverhead(bytes int64) { d.overheadBytes = bytes }
