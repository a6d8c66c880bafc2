package winch

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Task is a task with the type of its arguments, which encode as a JSON object, and of its result. The
// other fields are what its jobs get unless a producer says otherwise.
type Task[A, R any] struct {
	Name     string
	Queue    string
	Attempts int
	Timeout  time.Duration
	// Schema is the JSON Schema of the arguments; SchemaOf derives one. With it, a worker publishes the
	// task as it starts: from then on every producer, in any language, can enqueue the task without its
	// code and is refused arguments that do not fit.
	Schema Schema
}

// Handler runs one job. The context ends when it should stop; see Job.Stopped.
type Handler[A, R any] func(ctx context.Context, job *Job, args A) (R, error)

// Job is a job of this task, for EnqueueMany, for children, and for options:
//
//	later := SendMail.Job(Mail{Order: 7})
//	later.Delay = time.Hour
//	id, err := client.Enqueue(ctx, later)
func (t Task[A, R]) Job(args A) NewJob {
	return NewJob{Task: t.Name, Args: args, Queue: t.Queue, Timeout: t.Timeout}
}

// Enqueue stores a job of this task.
func (t Task[A, R]) Enqueue(ctx context.Context, client *Client, args A) (Handle[R], error) {
	id, err := client.Enqueue(ctx, t.Job(args))
	return Handle[R]{ID: id, client: client}, err
}

// Handle has the worker run jobs of this task with a handler. Call it before Run.
func (t Task[A, R]) Handle(worker *Worker, handler Handler[A, R]) {
	worker.register(t.Name, func(ctx context.Context, job *Job) (any, error) {
		var args A
		if err := json.Unmarshal(job.Args, &args); err != nil {
			return nil, Discard(fmt.Sprintf("malformed: the arguments are no %T: %v", args, err))
		}
		return handler(ctx, job, args)
	})
	if t.Schema != nil {
		worker.contracts = append(worker.contracts, contract{
			Task: t.Name, Schema: t.Schema, Queue: t.Queue, Attempts: t.Attempts, Timeout: duration(t.Timeout),
		})
	}
}

type contract struct {
	Task     string `json:"task"`
	Schema   Schema `json:"schema"`
	Queue    string `json:"queue,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	Timeout  string `json:"timeout,omitempty"`
}

// Handle is an enqueued job whose result has a type.
type Handle[R any] struct {
	ID     string
	client *Client
}

// Result waits until the job has completed; see Client.Result.
func (h Handle[R]) Result(ctx context.Context) (R, error) {
	var value R
	err := h.client.Result(ctx, h.ID, &value)
	return value, err
}

// Get returns the job as the server knows it.
func (h Handle[R]) Get(ctx context.Context) (Info, error) { return h.client.Get(ctx, h.ID) }

// Cancel cancels the job.
func (h Handle[R]) Cancel(ctx context.Context, reason string) error {
	return h.client.Cancel(ctx, h.ID, reason)
}
