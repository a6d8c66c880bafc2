-- move_done: forgets the open parcel of this number.
DELETE FROM {schema}.book_line
WHERE book = 'parcel'
    AND key = :key::text
    AND starts_with(body, :begin::text);
