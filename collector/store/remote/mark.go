package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// mark is how far a remote has acknowledged.
type mark struct {
	// Acked is the time, in milliseconds, up to which all is acknowledged.
	Acked int64 `json:"acked"`
	// Oldest is the oldest time that the store held then; 0: it was empty.
	Oldest int64 `json:"oldest"`
}

// errDamaged says that a mark cannot be read any more.
var errDamaged = errors.New("the mark of acknowledged samples is damaged")

type markFile struct{ path string }

// newMarkFile is the file of one remote: its name and address tell it apart.
func newMarkFile(dir, name, url string) markFile {
	sum := sha256.Sum256([]byte(name + "\x00" + url))
	return markFile{filepath.Join(dir, "remote", hex.EncodeToString(sum[:8])+".mark")}
}

// read is the mark; fs.ErrNotExist where there was never one, errDamaged where
// it does not agree with its checksum.
func (f markFile) read() (mark, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return mark{}, err
	}
	var m mark
	var sum uint32
	if len(data) < 9 || data[8] != '\n' {
		return mark{}, errDamaged
	}
	if _, err := fmt.Sscanf(string(data[:8]), "%08x", &sum); err != nil || crc32.ChecksumIEEE(data[9:]) != sum {
		return mark{}, errDamaged
	}
	if json.Unmarshal(data[9:], &m) != nil {
		return mark{}, errDamaged
	}
	return m, nil
}

// write replaces the mark at once and for good: it is synced before it has its
// name, and its name is synced before write returns.
func (f markFile) write(m mark) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	tmp := f.path + ".new"
	file, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%08x\n%s", crc32.ChecksumIEEE(body), body)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func isNew(err error) bool { return errors.Is(err, fs.ErrNotExist) }
