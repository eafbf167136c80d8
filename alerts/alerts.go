package alerts

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Files are the embedded rule files.
func Files() fs.FS { return files }

// Runbooks is the folder of the runbooks in the source tree; every runbook_url
// of the embedded files begins with it.
const Runbooks = "docs/runbooks/"

// Write prints the embedded files as one. A base other than none replaces
// Runbooks, so that the links lead to where the reader serves them.
func Write(w io.Writer, base string) error {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString("# Rules of Evenkeel, for a Prometheus from 2.42 on that scrapes its collector or its exporters.\ngroups:\n")
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		_, groups, found := strings.Cut(string(data), "\ngroups:\n")
		if !found {
			return fmt.Errorf("%s: no line that begins the groups", name)
		}
		if base != "" {
			groups = strings.ReplaceAll(groups, "runbook_url: "+Runbooks, "runbook_url: "+strings.TrimSuffix(base, "/")+"/")
		}
		out.WriteString(groups)
	}
	_, err = w.Write(out.Bytes())
	return err
}
