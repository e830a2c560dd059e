// The page of one order

import { edit } from '/atomic-lock.js';

const at = location.pathname; // /orders/42
const [title, state, note, save, saved, asked] = ['title', 'state', 'note', 'save', 'saved', 'asked'].map((id) => document.getElementById(id));
const form = edit(`${at}/lock`);
let loaded; // the grant under which the note was read

title.textContent = `Order ${at.split('/').pop()}`;
document.title = title.textContent;

// Take the lock, then read
async function load() {
  const grant = form.headers['Atomic-Lock'];
  const order = await (await fetch(`${at}/data`)).json();
  if (grant !== form.headers['Atomic-Lock']) return; // it was read too early, and will be read again
  note.value = order.note;
  loaded = grant;
  show();
}

function words({ holder, place, why, reason, free }) {
  switch (form.state) {
    case 'editing': return 'You are editing';
    case 'queued': return `In line, place ${place}: ${holder ?? 'nobody'} is editing`;
    case 'offered': return 'It is your turn';
    case 'lost': return `You have lost it (${why ?? reason})${holder ? `, ${holder} is editing` : ''}. What you did not save is below`;
    default: return `Reading${holder ? `: ${holder} is editing` : ''}${free ? ': nobody is editing' : ''}${reason === 'offer_over' ? ' (your turn is over)' : ''}`;
  }
}

function show() {
  const editing = form.state === 'editing';
  state.textContent = words(form.facts);
  document.body.className = form.state;
  note.readOnly = save.disabled = !(editing && loaded === form.headers['Atomic-Lock']);
  for (const button of document.querySelectorAll('[data-when]')) button.hidden = !button.dataset.when.split(' ').includes(form.state);
}

form.addEventListener('state', () => {
  show();
  if (form.state === 'editing' && loaded !== form.headers['Atomic-Lock']) load();
});
form.addEventListener('asked', ({ detail }) => { asked.textContent = detail.message; });
setInterval(show, 1000); // form.state goes by the clock

document.getElementById('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const response = await fetch(at, {
    method: 'POST', headers: { 'Content-Type': 'application/json', 'Atomic-Lock': loaded }, body: JSON.stringify({ note: note.value }) });
  const { reason } = await response.json();
  saved.textContent = response.ok ? 'Saved' : `Not saved (${reason ?? response.status})`;
  if (!response.ok) form.check();
});
for (const button of document.querySelectorAll('[data-do]')) {
  const message = { ask: 'please finish', takeOver: 'it is urgent' }[button.dataset.do];
  button.addEventListener('click', () => form[button.dataset.do](message).catch((error) => { asked.textContent = error.message; }));
}
load();
show();
