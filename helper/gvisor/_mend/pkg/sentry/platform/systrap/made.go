package systrap

// MakeFilters runs what builds those filters of the platform that are the same for every machine; the others name addresses
// that are drawn by lot. Its caller sees to it that building does not return (seccomp.Making). The priority that the sentry's
// own filter names becomes that of a process that nobody made more or less important.
func MakeFilters() {
	sysmsgThreadPriorityOnce.Do(func() { sysmsgThreadPriority = 1 })
	sysmsgSyscallNotifyRules()
}
