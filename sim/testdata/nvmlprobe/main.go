// Command nvmlprobe drives an unmodified go-nvml from its standard input, one
// command a line, and answers each with one line of JSON.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type answer map[string]any

var (
	library = nvml.New()
	sets    = map[int]nvml.EventSet{}
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		a := run(strings.Fields(in.Text()))
		if err := out.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func run(words []string) answer {
	if len(words) == 0 {
		return answer{"error": "empty"}
	}
	number := func(i int) int {
		n := 0
		if i < len(words) {
			fmt.Sscan(words[i], &n) //nolint:errcheck // the test sends numbers
		}
		return n
	}
	switch words[0] {
	case "init":
		return answer{"ret": library.Init()}
	case "shutdown":
		return answer{"ret": library.Shutdown()}
	case "system":
		driver, r1 := library.SystemGetDriverVersion()
		version, r2 := library.SystemGetNVMLVersion()
		cuda, r3 := library.SystemGetCudaDriverVersion()
		return answer{"ret": first(r1, r2, r3), "driver": driver, "nvml": version, "cuda": cuda}
	case "count":
		n, ret := library.DeviceGetCount()
		return answer{"ret": ret, "count": n}
	case "symbol":
		return answer{"found": library.Extensions().LookupSymbol(words[1]) == nil}
	case "errorstring":
		return answer{"text": nvml.ErrorString(nvml.Return(number(1)))}
	case "newset":
		set, ret := library.EventSetCreate()
		sets[number(1)] = set
		return answer{"ret": ret}
	case "wait":
		data, ret := sets[number(1)].Wait(uint32(number(2)))
		a := answer{"ret": ret, "type": data.EventType, "data": data.EventData}
		if ret == nvml.SUCCESS {
			index, r := data.Device.GetIndex()
			a["index"], a["index_ret"] = index, r
		}
		return a
	case "freeset":
		return answer{"ret": sets[number(1)].Free()}
	}
	d, ret := library.DeviceGetHandleByIndex(number(1))
	if words[0] == "handle" || ret != nvml.SUCCESS {
		return answer{"ret": ret}
	}
	return device(d, words, number)
}

func first(returns ...nvml.Return) nvml.Return {
	for _, r := range returns {
		if r != nvml.SUCCESS {
			return r
		}
	}
	return nvml.SUCCESS
}
