package agent

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user whose a file is.
func ownerOf(info fs.FileInfo) (uid uint32, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
