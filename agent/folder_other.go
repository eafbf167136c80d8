//go:build !linux

package agent

import "io/fs"

// ownerOf is not known here, where no process is ended either.
func ownerOf(fs.FileInfo) (uid uint32, known bool) { return 0, false }
