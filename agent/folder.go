package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openFolder makes the folder, whatever the umask, such that owners get in. One
// that others may write to is not used: they could lead the agent, which is
// root, to write and remove elsewhere.
func openFolder(dir string) error {
	up := filepath.Dir(dir)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && up != dir {
		if err := openFolder(up); err != nil {
			return err
		}
		// Not MkdirAll, which takes what somebody has put there meanwhile.
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			return os.Chmod(dir, 0o755)
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return trusted(dir)
}

// trusted says whether nobody but root and the agent's own user can change what
// a folder is: by its links as well as by what they lead to.
func trusted(dir string) error {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		info, err := os.Lstat(d)
		if err != nil {
			return err
		}
		if uid, known := ownerOf(info); known && uid != 0 && int(uid) != os.Geteuid() {
			return fmt.Errorf("%s is user %d's, who could lead the agent elsewhere; chown it to root, or name another folder", d, uid)
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if real != filepath.Clean(dir) {
		return trusted(real)
	}
	for d := real; d != filepath.Dir(d); d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case !mode.IsDir():
			return fmt.Errorf("%s is not a directory", d)
		case mode.Perm()&0o022 != 0 && (d == real || mode&fs.ModeSticky == 0):
			return fmt.Errorf("%s may be written by others than its owner, who could lead the agent elsewhere; chmod go-w it, or name another folder", d)
		}
	}
	return nil
}
