package process

import (
	"errors"
	"os/user"
	"strconv"
	"sync"
	"time"
)

const (
	// nameWait bounds a look-up: a name service may be a server that is away.
	nameWait = 2 * time.Second
	// nameLasts and failureLasts are how long an answer counts, and the lack of
	// one.
	nameLasts    = 10 * time.Minute
	failureLasts = time.Minute
)

// lookups answers from memory what was asked lately, keeps one look-up of a key
// under way at most, and waits for it once.
type lookups struct {
	ask func(key string) (string, error)

	mu      sync.Mutex
	answers map[string]*answer
}

type answer struct {
	ready chan struct{} // closed when there is one
	late  bool          // somebody has waited in vain
	value string
	err   error
	until time.Time
}

var (
	errNoName = errors.New("the name service does not answer")

	namesByID = &lookups{ask: func(uid string) (string, error) {
		u, err := user.LookupId(uid)
		if err != nil {
			return "", err
		}
		return u.Username, nil
	}}
	idsByName = &lookups{ask: func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}}
)

func (l *lookups) get(key string) (string, error) {
	l.mu.Lock()
	a := l.answers[key]
	if a == nil || !a.until.IsZero() && time.Now().After(a.until) {
		if l.answers == nil || len(l.answers) > 4096 {
			l.answers = map[string]*answer{}
		}
		a = &answer{ready: make(chan struct{})}
		l.answers[key] = a
		go l.find(a, key)
	}
	late := a.late && a.until.IsZero()
	l.mu.Unlock()
	if late {
		return "", errNoName
	}
	t := time.NewTimer(nameWait)
	defer t.Stop()
	select {
	case <-a.ready:
		return a.value, a.err
	case <-t.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.late = true
	return "", errNoName
}

func (l *lookups) find(a *answer, key string) {
	value, err := l.ask(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	a.value, a.err, a.until = value, err, time.Now().Add(nameLasts)
	if err != nil {
		a.until = time.Now().Add(failureLasts)
	}
	close(a.ready)
}

// UserName is the name of a user, or the number if there is none.
func UserName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if name, err := namesByID.get(number); err == nil && name != "" {
		return name
	}
	return number
}

// userID is the number of a user that is given by name or number.
func userID(entry string) (uint32, error) {
	number := entry
	if _, err := strconv.ParseUint(entry, 10, 32); err != nil {
		if entry == "root" {
			return 0, nil
		}
		if number, err = idsByName.get(entry); err != nil {
			return 0, err
		}
	}
	id, err := strconv.ParseUint(number, 10, 32)
	return uint32(id), err
}
