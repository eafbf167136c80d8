package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxNames bounds what one range may stand for, and what a file may list.
const maxNames = 100_000

// expand writes out the ranges of a name, as Slurm's host lists have them:
// r[1-2]n[01-16,20] is r1n01 … r1n16, r1n20, r2n01 …
func expand(pattern string) ([]string, error) {
	before, rest, found := strings.Cut(pattern, "[")
	if !found {
		if strings.Contains(pattern, "]") {
			return nil, fmt.Errorf("%q has a ] without a [", pattern)
		}
		return []string{pattern}, nil
	}
	list, after, found := strings.Cut(rest, "]")
	if !found || strings.Contains(before, "]") || strings.Contains(list, "[") {
		return nil, fmt.Errorf("%q: brackets do not match; want a range such as gpu-[001-128]", pattern)
	}
	tails, err := expand(after)
	if err != nil {
		return nil, err
	}
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		numbers, err := span(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", pattern, err)
		}
		if len(out)+len(numbers)*len(tails) > maxNames {
			return nil, fmt.Errorf("%q stands for more than %d names", pattern, maxNames)
		}
		for _, n := range numbers {
			for _, t := range tails {
				out = append(out, before+n+t)
			}
		}
	}
	return out, nil
}

// span is one number or a range of them; leading zeros give the width.
func span(part string) ([]string, error) {
	first, last, isRange := strings.Cut(part, "-")
	if !isRange {
		last = first
	}
	from, err := number(first)
	to, err2 := number(last)
	switch {
	case err != nil || err2 != nil:
		return nil, fmt.Errorf("%q is no range of numbers; want such as 001-128", part)
	case to < from:
		return nil, fmt.Errorf("range %q runs backwards", part)
	case to-from >= maxNames:
		return nil, fmt.Errorf("range %q is more than %d names", part, maxNames)
	case len(first) > len(last) || len(first) < len(last) && first[0] == '0':
		return nil, fmt.Errorf("range %q: write both ends with as many digits", part)
	}
	width := 0
	if first[0] == '0' {
		width = len(first)
	}
	out := make([]string, 0, to-from+1)
	for n := from; n <= to; n++ {
		out = append(out, fmt.Sprintf("%0*d", width, n))
	}
	return out, nil
}

func number(digits string) (int, error) {
	if digits == "" || len(digits) > 9 || strings.Trim(digits, "0123456789") != "" {
		return 0, errors.New("not a number")
	}
	return strconv.Atoi(digits)
}
