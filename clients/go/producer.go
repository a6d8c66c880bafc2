package winch

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"
)

// NewJob is a job to enqueue. Only Task is needed.
type NewJob struct {
	Task string
	// Args is what encodes as a JSON object: a struct, or a map.
	Args any
	// Queue is by default that of the task, as the server or the task's contract knows it.
	Queue    string
	Priority int
	Delay    time.Duration
	RunAt    time.Time
	Expires  time.Duration
	Timeout  time.Duration
	// Unique: at most one live job has this key.
	Unique string
	// Fifo: jobs of one key run one at a time, in their order.
	Fifo    string
	Tenant  string
	Tags    []string
	Headers map[string]string
	// ID is drawn by default. A repeat with the same ID stores nothing.
	ID string
}

// MarshalJSON writes the job as the body of POST /jobs.
func (j NewJob) MarshalJSON() ([]byte, error) {
	body := map[string]any{"task": j.Task, "args": j.Args}
	if j.Args == nil {
		body["args"] = struct{}{}
	}
	for name, text := range map[string]string{
		"queue": j.Queue, "unique": j.Unique, "fifo": j.Fifo, "tenant": j.Tenant, "id": j.ID,
		"delay": duration(j.Delay), "expires": duration(j.Expires), "timeout": duration(j.Timeout),
	} {
		if text != "" {
			body[name] = text
		}
	}
	if j.Priority != 0 {
		body["priority"] = j.Priority
	}
	if !j.RunAt.IsZero() {
		body["run_at"] = j.RunAt.UTC().Format(time.RFC3339Nano)
	}
	if len(j.Tags) > 0 {
		body["tags"] = j.Tags
	}
	if len(j.Headers) > 0 {
		body["headers"] = j.Headers
	}
	return json.Marshal(body)
}

// duration is a time as the API writes it; empty for none.
func duration(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt((d+time.Millisecond-1).Milliseconds(), 10) + "ms"
}

// Enqueue stores a job and returns its id. A request whose answer was lost is sent again under the same id,
// so there is one job.
func (c *Client) Enqueue(ctx context.Context, job NewJob) (string, error) {
	job = c.ready(ctx, job)
	var answer struct{ ID string }
	err := c.ask(ctx, "POST", "/jobs", job, &answer, call{patience: c.patience})
	return answer.ID, err
}

// EnqueueMany stores jobs, all or none, and returns their ids in the same order.
func (c *Client) EnqueueMany(ctx context.Context, jobs []NewJob) ([]string, error) {
	named := make([]NewJob, len(jobs))
	for n, job := range jobs {
		named[n] = c.ready(ctx, job)
	}
	var answer stored
	body := map[string]any{"jobs": named}
	err := c.ask(ctx, "POST", "/jobs:bulk", body, &answer, call{patience: c.patience})
	return answer.ids(), err
}

type stored struct {
	Jobs []struct{ ID string }
}

func (s stored) ids() []string {
	ids := make([]string, len(s.Jobs))
	for n, job := range s.Jobs {
		ids[n] = job.ID
	}
	return ids
}

// ready is the job with an id and the trace of the call.
func (c *Client) ready(ctx context.Context, job NewJob) NewJob {
	if job.ID == "" {
		job.ID = newID()
	}
	job.Headers = traced(job.Headers, c.trace(ctx))
	return job
}

// Info is a job as the server knows it. Raw is the whole answer.
type Info struct {
	ID          string            `json:"id"`
	Task        string            `json:"task"`
	State       string            `json:"state"`
	Queue       string            `json:"queue"`
	Priority    int               `json:"priority"`
	Tenant      string            `json:"tenant"`
	Args        json.RawMessage   `json:"args"`
	Tags        []string          `json:"tags"`
	Headers     map[string]string `json:"headers"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	CreatedAt   time.Time         `json:"created_at"`
	RunAt       time.Time         `json:"run_at"`
	FinishedAt  time.Time         `json:"finished_at"`
	Progress    json.RawMessage   `json:"progress"`
	Result      json.RawMessage   `json:"result"`
	Reason      string            `json:"reason"`
	Error       *struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	Raw json.RawMessage `json:"-"`
}

// Get returns a job.
func (c *Client) Get(ctx context.Context, id string) (Info, error) {
	var info Info
	err := c.ask(ctx, "GET", jobPath(id, ""), nil, &info.Raw, call{patience: c.patience})
	if err == nil {
		err = json.Unmarshal(info.Raw, &info)
	}
	return info, err
}

// Cancel cancels a job; the handler of one that runs is asked to stop.
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	body := map[string]any{}
	if reason != "" {
		body["reason"] = reason
	}
	return c.ask(ctx, "POST", jobPath(id, "/cancel"), body, nil, call{patience: c.patience})
}

// Retry makes a job ready now: one that waits, or one that has ended.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.ask(ctx, "POST", jobPath(id, "/retry"), struct{}{}, nil, call{patience: c.patience})
}

// Result waits until a job has completed, and decodes what it returned into value, if that is not nil. The
// error of a job that is dead or cancelled is a *JobEnded. The wait ends with the context.
func (c *Client) Result(ctx context.Context, id string, value any) error {
	pause := 50 * time.Millisecond
	for {
		var found struct {
			State  string
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		err := c.ask(ctx, "GET", jobPath(id, "/result"), nil, &found, call{patience: c.patience})
		if err != nil {
			return err
		}
		switch found.State {
		case "completed":
			if value == nil {
				return nil
			}
			return json.Unmarshal(found.Result, value)
		case "dead", "cancelled":
			ended := &JobEnded{ID: id, State: found.State}
			if found.Error != nil {
				ended.Message = found.Error.Message
			}
			return ended
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		if pause *= 2; pause > time.Second {
			pause = time.Second
		}
	}
}

func jobPath(id, more string) string { return "/jobs/" + url.PathEscape(id) + more }
