package winch

import (
	"context"
	"encoding/json"
)

const mostInBatch = 200

// note is one report of a handler that waits for the store's answer.
type note struct {
	job   *Job
	field string
	value json.RawMessage
	done  chan error
}

// notes sends what handlers report: while one request is under way the next ones gather, and go together.
type notes struct {
	worker  *Worker
	waiting chan *note
}

func (n *notes) send(job *Job, field string, value json.RawMessage) error {
	one := &note{job, field, value, make(chan error, 1)}
	select {
	case n.waiting <- one:
	case <-n.worker.life.Done():
		return ErrLost
	}
	select {
	case err := <-one.done:
		return err
	case <-n.worker.life.Done():
		return ErrLost
	}
}

func (n *notes) run(ctx context.Context) {
	var later []*note
	for {
		batch, rest := later, []*note(nil)
		if len(batch) == 0 {
			select {
			case one := <-n.waiting:
				batch = append(batch, one)
			case <-ctx.Done():
				return
			}
		}
		for more := true; more && len(batch) < mostInBatch; {
			select {
			case one := <-n.waiting:
				batch = append(batch, one)
			default:
				more = false
			}
		}
		// Two notes of one job cannot be in one request, and keep their order.
		seen, now := map[string]bool{}, []*note(nil)
		for _, one := range batch {
			if seen[one.job.token+one.job.ID] {
				rest = append(rest, one)
				continue
			}
			seen[one.job.token+one.job.ID] = true
			now = append(now, one)
		}
		n.post(ctx, now)
		later = rest
	}
}

func (n *notes) post(ctx context.Context, batch []*note) {
	body := make([]map[string]any, len(batch))
	for place, one := range batch {
		body[place] = map[string]any{"id": one.job.ID, "token": one.job.token, one.field: one.value}
	}
	var answer struct {
		Answers []struct{ Answer string }
	}
	how := call{patience: n.worker.client.patience}
	err := n.worker.ask(ctx, "/notes", map[string]any{"notes": body}, &answer, how)
	if err != nil && len(batch) > 1 && isRefusal(err) {
		for _, one := range batch { // one that the server refuses must not keep the others
			n.post(ctx, []*note{one})
		}
		return
	}
	if IsCode(err, "session-ended") {
		err = ErrLost
	}
	for place, one := range batch {
		result := err
		if result == nil && place < len(answer.Answers) && answer.Answers[place].Answer == "lost" {
			result = ErrLost
		}
		if result == ErrLost {
			one.job.stop(Lost)
		}
		one.done <- result
	}
}
