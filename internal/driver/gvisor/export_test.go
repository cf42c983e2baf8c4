package gvisor

// OverheadBytes is what a machine may use on top of its own limit.
const OverheadBytes = overheadBytes
