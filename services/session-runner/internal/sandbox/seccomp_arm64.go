package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls lists the allowed system calls that have different names on this
// architecture.
var archCalls = []uintptr{unix.SYS_FSTATAT, unix.SYS_RENAMEAT}
