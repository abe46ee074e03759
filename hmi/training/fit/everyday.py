"""Sentences of many kinds, with which a model's own texts are contrasted (`hmi.training.fit.novelty`).

They were written for this purpose, and no model is trained on them. What counts is that they are of many
kinds: requests, questions, news, science, law, trade, reviews, chat, code, medicine, captions, sums, stories.
"""

from __future__ import annotations

EVERYDAY = """
Remind me to water the plants tomorrow morning.
what time does the last train leave
Book a table for four near the harbour on Friday evening.
How do I reset the password of my account?
turn the volume down a little
play something quiet by a string quartet
My parcel should have come last week and nobody answers the phone.
Can you tell me how much is left on my card?
i want to cancel the order i placed an hour ago
Will it rain in Lisbon at the weekend?
The government fell on Tuesday after losing a vote of confidence by a single seat.
Rescue teams reached the village two days after the earthquake.
The striker scored twice in the last ten minutes to win the cup.
Shares of the airline dropped 7 percent after it cut its forecast.
The central bank kept interest rates unchanged, as most analysts had expected.
Exports of steel rose to 3.4 million tonnes in the first quarter.
Voters in the north go to the polls on Sunday to elect a new mayor.
A fire in a warehouse closed the motorway for most of the night.
The museum will lend the painting to Madrid for an exhibition next spring.
Prosecutors accused the former minister of taking bribes from a builder.
We propose a method that learns the structure of a graph from few observations.
The samples were heated to 450 degrees for two hours and cooled slowly in air.
Patients in the treatment group had fewer relapses than those who received placebo.
Expression of the receptor was reduced in all cell lines that we examined.
These results suggest that early screening lowers mortality, although the trial was small.
The telescope recorded faint infrared light from a galaxy twelve billion years old.
Let f be a continuous function on a closed interval; then f attains its maximum.
A survey of 1,200 households showed that income explains little of the difference.
The proof follows from the previous lemma by induction on the number of edges.
Soil moisture was measured weekly at depths of 10, 20 and 40 cm.
The tenant shall return the keys on the last day of the term.
The court held that the clause was void because it had never been agreed.
Neither party is liable for delays that are caused by events beyond its control.
This agreement is governed by the laws of the state in which the seller resides.
The appeal is dismissed, and each side bears its own costs.
Invoices are payable within thirty days of receipt.
Please find attached the minutes of our meeting and the revised budget.
Could we move the call to half past two? I am still in another meeting.
Thank you for your patience; the refund was sent to your bank this morning.
All employees must complete the safety course before the end of March.
The plot is thin, but the two leads are so funny together that you forgive it.
Dull, overlong and badly acted.
I bought this kettle in May and the lid broke in June.
The battery lasts all day and the screen is bright enough outdoors.
Friendly staff, clean rooms, but the street is noisy until late.
This is the best novel I have read in years, and the ending made me cry.
The seat was narrow, the food was cold, and we landed two hours late.
Great value for the price, would order again.
A masterpiece of colour and sound that nobody should miss.
It does what it says, nothing more.
lol that is exactly what my brother said
@maria happy birthday!! see you tonight
I can't believe they cancelled the show again #disappointed
so tired of people who never read the article before they comment
Does anyone know a good dentist around here?
Good morning everyone, hope you all have a lovely day :)
why is the bus always late when I am in a hurry
ok thanks, talk later
That referee should be ashamed of himself.
Not gonna lie, this song is stuck in my head.
Chop the onions finely and fry them in butter until they are golden.
Bake at 180 degrees for forty minutes, then let the cake cool in its tin.
Add salt, pepper and the juice of half a lemon.
Soak the beans overnight and throw the water away.
A glass of this wine goes well with grilled fish.
The function returns a list of tuples, one for each row of the table.
If the file does not exist, the program prints an error and exits with status 2.
Install the package, restart the server, and check the log for warnings.
The loop never ends because the counter is reset inside it.
Has anybody got this graphics card to work with an older driver?
Memory is allocated once at the start and reused for every request.
Take two tablets with water three times a day after meals.
The boy has had a fever and a rash since Monday.
An x-ray showed a small fracture of the left wrist.
The heart rate was 72 and the blood pressure 130 over 85.
She was discharged after five days without complications.
A brown dog is running along a beach.
Two women in red coats are waiting at a bus stop.
A man is slicing a tomato in a kitchen.
Several children sit on the grass and look at a kite.
There is no one on the swing.
Anna has 12 apples and gives a third of them to her sister; how many are left?
A train covers 240 kilometres in three hours, so its speed is 80 kilometres an hour.
The sum of two numbers is 31 and their difference is 7.
A shirt costs 25 dollars after a discount of 20 percent.
Seven times eight is fifty-six.
The Danube rises in the Black Forest and flows through ten countries.
He was born in 1874, studied in Vienna, and became a teacher of mathematics.
The castle was built in the twelfth century and destroyed by fire in 1689.
Penguins live almost only in the southern hemisphere.
Bronze is an alloy of copper and tin.
The church stands on a hill above the old market.
The village has about 900 inhabitants and a primary school.
Its leaves are narrow, and its small white flowers appear in late spring.
The language has four cases and no articles.
What is the capital of Mongolia?
Who wrote the opera that opened the festival last year?
Is it cheaper to rent a car for a week or for five days?
She closed the door quietly and walked down to the river.
"You should have told me," he said, and looked out of the window.
The old man laughed until he had to sit down.
Nothing moved on the lake except a single boat.
I had never seen so many stars.
We ought to believe neither that all promises bind nor that none does.
God, they say, is in the details.
The election of the committee was postponed until further notice.
The mechanic replaced the brake pads and checked the oil.
Prices of flats in the suburbs have doubled within ten years.
The insurance covers theft, fire and water, but not floods.
Our flight from Boston to Denver was moved to gate B14.
First class tickets on the morning ferry are sold out.
Students may borrow up to six books for four weeks.
The orchestra rehearses on Wednesdays in the town hall.
The coach said that the team needed younger players.
Solar panels now supply a fifth of the island's electricity.
The bill would tax plastic bags and fund new cycle paths.
Farmers fear that the drought will ruin the olive harvest.
The company opened a second factory in Poland and hired 300 people.
Ship the chairs to the branch in Leeds and the tables to head office.
net profit 4.1 mln vs 3.8 mln, revenue 52 mln vs 49 mln
""".strip().split("\n")
"""Not empty, each a sentence or a fragment of one."""
