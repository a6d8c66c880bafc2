package winch

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Reason is why a handler should stop.
type Reason string

const (
	// Cancelled: a person or a program has asked for it. What the handler returns then still counts; an
	// error that is context.Canceled ends the job as cancelled.
	Cancelled Reason = "cancel"
	// Lost: the job is another worker's. What the handler returns is dropped.
	Lost Reason = "lost"
	// Stopping: the worker ends. A handler that returns context.Canceled gives the job back.
	Stopping Reason = "stop"
	// TimedOut: the job takes longer than its timeout. An error that is context.Canceled fails the attempt.
	TimedOut Reason = "timeout"
)

// Job is a job that a handler runs. Its methods may be called from any goroutine, also after the context of
// the handler has ended.
type Job struct {
	Facts

	saved   json.RawMessage
	token   string // the proof of the claim
	worker  *Worker
	cancel  context.CancelFunc
	mutex   sync.Mutex
	stopped Reason
}

// Facts are what is known of a job that runs.
type Facts struct {
	ID        string            `json:"id"`
	Task      string            `json:"task"`
	Version   int               `json:"version"`
	Queue     string            `json:"queue"`
	Attempt   int               `json:"attempt"`
	Fence     int64             `json:"fence"`
	CreatedAt time.Time         `json:"created_at"`
	ExpiresAt time.Time         `json:"expires_at"`
	Headers   map[string]string `json:"headers"`
	Args      json.RawMessage   `json:"args"`
	// Input is what a member of a flow takes from the jobs before it.
	Input json.RawMessage `json:"input"`
	// TimeoutSeconds is how long the handler may run; 0: no limit.
	TimeoutSeconds float64 `json:"timeout_seconds"`
}

// claimed is a job as the server sends it.
type claimed struct {
	Facts
	Token      string          `json:"token"`
	Checkpoint json.RawMessage `json:"checkpoint"`
}

// String names the job, without its arguments and its token.
func (j *Job) String() string {
	return fmt.Sprintf("job %s (%s) attempt %d", j.ID, j.Task, j.Attempt)
}

// GoString is String.
func (j *Job) GoString() string { return j.String() }

// Stopped is why the handler should stop; empty while it should not.
func (j *Job) Stopped() Reason {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return j.stopped
}

func (j *Job) stop(why Reason) {
	j.mutex.Lock()
	if j.stopped == "" || why == Lost {
		j.stopped = why
	}
	j.mutex.Unlock()
	j.cancel()
}

// LastCheckpoint decodes what an earlier attempt stored with Checkpoint. False: there is none.
func (j *Job) LastCheckpoint(value any) (bool, error) {
	if len(j.saved) == 0 || string(j.saved) == "null" {
		return false, nil
	}
	return true, json.Unmarshal(j.saved, value)
}

// Checkpoint stores what the next attempt finds in LastCheckpoint. The error is ErrLost when the job is
// another worker's by now.
func (j *Job) Checkpoint(value any) error { return j.note("checkpoint", value) }

// Progress reports how far the job is, for the dashboard: any JSON.
func (j *Job) Progress(value any) error { return j.note("progress", value) }

// Logf adds a line to the log of the job.
func (j *Job) Logf(format string, args ...any) error {
	return j.note("log", fmt.Sprintf(format, args...))
}

// Enqueue stores children of this job and returns their ids. The ids follow from the job, the name and the
// place, so a repeat and a later attempt store none of them twice; give each call of a job a name of its
// own. The error is ErrLost when the job is another worker's by now.
func (j *Job) Enqueue(name string, jobs ...NewJob) ([]string, error) {
	children := make([]NewJob, len(jobs))
	for n, child := range jobs {
		child.Headers = traced(child.Headers, traceOf(j.Headers))
		children[n] = child
	}
	body := map[string]any{"parent": j.ref(), "jobs": children, "name": name}
	var answer stored
	err := j.worker.ask(j.worker.life, "/children", body, &answer, call{patience: j.worker.client.patience})
	if IsCode(err, "lost-claim") || IsCode(err, "session-ended") {
		j.stop(Lost)
		return nil, ErrLost
	}
	return answer.ids(), err
}

type ref struct {
	ID    string `json:"id"`
	Token string `json:"token"`
}

func (j *Job) ref() ref { return ref{j.ID, j.token} }

func (j *Job) note(field string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("winch: what was reported is no JSON: %w", err)
	}
	if j.Stopped() == Lost {
		return ErrLost
	}
	return j.worker.notes.send(j, field, text)
}
