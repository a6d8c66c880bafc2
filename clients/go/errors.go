package winch

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// Error is a request that the server refused, or that found no server. Code is that of the problem, like
// "unknown-task" or "queue-full". Without an answer, Status is 0 and Code is "unreachable".
type Error struct {
	Status     int
	Code       string
	Detail     string
	RetryAfter time.Duration
	cause      error
}

func (e *Error) Error() string {
	if e.Status == 0 {
		return "winch: " + e.Detail
	}
	return fmt.Sprintf("winch: %d %s: %s", e.Status, e.Code, e.Detail)
}

// Unwrap returns what the network or the TLS library reported, if anything.
func (e *Error) Unwrap() error { return e.cause }

// IsCode tells whether an error is an answer of the server with this code.
func IsCode(err error, code string) bool {
	var found *Error
	return errors.As(err, &found) && found.Code == code
}

// JobEnded is the error of Result for a job that did not complete: State is "dead" or "cancelled".
type JobEnded struct {
	ID      string
	State   string
	Message string
}

func (e *JobEnded) Error() string {
	return fmt.Sprintf("winch: job %s is %s: %s", e.ID, e.State, e.Message)
}

// ErrLost is returned to a handler whose job another worker has by now: what it reports is dropped.
var ErrLost = errors.New("winch: the claim has ended; the job is another worker's")

// cleaned is an error without the URL that net/http adds: the URL of a session's request has its key.
func cleaned(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// -- how a handler ends its job ---------------------------------------------------------------------

type outcome struct {
	kind   string
	delay  time.Duration
	reason string
}

func (o *outcome) Error() string {
	if o.reason == "" {
		return "winch: " + o.kind
	}
	return "winch: " + o.kind + ": " + o.reason
}

// RetryAfter is what a handler returns to have the next attempt begin after this delay. The attempt counts
// as failed.
func RetryAfter(delay time.Duration, reason string) error {
	return &outcome{"retry", delay, reason}
}

// Snooze is what a handler returns to run again after this delay. It costs no attempt.
func Snooze(delay time.Duration, reason string) error {
	return &outcome{"snooze", delay, reason}
}

// Discard is what a handler returns to end its job as dead, without a retry.
func Discard(reason string) error { return &outcome{"discard", 0, reason} }

// Cancel is what a handler returns to end its job as cancelled.
func Cancel(reason string) error { return &outcome{"cancel", 0, reason} }

// Named is an error with a name, which the dashboard shows and by which dead jobs are grouped. The name of
// any other error is that of its type.
type Named interface {
	error
	ErrorName() string
}

// chainOf shows an error in full: with its stack, if it has one, and each error that it wraps.
func chainOf(err error) string {
	lines := []string{fmt.Sprintf("%T: %+v", err, err)}
	for inner := errors.Unwrap(err); inner != nil && len(lines) < 20; inner = errors.Unwrap(inner) {
		lines = append(lines, fmt.Sprintf("wraps %T: %v", inner, inner))
	}
	return strings.Join(lines, "\n")
}

func nameOf(err error) string {
	var named Named
	if errors.As(err, &named) {
		return named.ErrorName()
	}
	kind := reflect.TypeOf(err)
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch kind.Name() {
	case "", "errorString", "wrapError", "wrapErrors", "joinError":
		return "error"
	}
	return kind.Name()
}
